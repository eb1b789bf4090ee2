"""A child that reads nothing of what it is sent."""

import time

time.sleep(600)
