"""The environment in which both sides of a comparison keep the memory that they have."""

# glibc gives large arrays back to the system, which clears them again for the next batch; PyTorch asks for many. The
# heaps of other threads than the main one it gives back by another rule, unless it is to keep some room in each.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(2**33),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
}
