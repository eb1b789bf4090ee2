"""What stands between the environment and other libraries; each module needs the extra that it names."""
