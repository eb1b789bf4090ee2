"""The memory: kernels that were promoted, with the evidence for each, and what was decided on them.

A folder holds an index (diskcache, JSON only) and content-addressed files. `KernelCache` is the
way in; what it answers is a value for every expected failure.
"""

from kernel_cache.audit import Finding
from kernel_cache.canonical import Json
from kernel_cache.fields import RecordError
from kernel_cache.key import KernelKey
from kernel_cache.queue import QueuedTask
from kernel_cache.record import NegativeRecord, Record, needs_reverification
from kernel_cache.retention import GcReport
from kernel_cache.store import KernelCache
from kernel_cache.values import CacheUnavailable, Corrupt, Fault, Miss, Stored

__all__ = [
    "CacheUnavailable",
    "Corrupt",
    "Fault",
    "Finding",
    "GcReport",
    "Json",
    "KernelCache",
    "KernelKey",
    "Miss",
    "NegativeRecord",
    "QueuedTask",
    "Record",
    "RecordError",
    "Stored",
    "needs_reverification",
]
