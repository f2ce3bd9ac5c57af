"""The environment in which both sides of a comparison keep the memory that they have."""

# glibc gives large arrays back to the system, which clears them again for the next batch; PyTorch asks for many.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**33), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
