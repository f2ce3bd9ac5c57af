"""What `import keras_bert_zoo` costs beyond `import keras`: median and spread over fresh processes.

KERAS_BACKEND=jax python benchmarks/import_time.py
"""

import statistics
import subprocess
import sys

CODE = """
import time
start = time.perf_counter()
import keras
middle = time.perf_counter()
import keras_bert_zoo
print(keras.backend.backend(), middle - start, time.perf_counter() - middle)
"""


def main(runs: int = 9) -> None:
    outputs = [
        subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(runs)
    ]
    for name, column in (("import keras", 1), ("import keras_bert_zoo, beyond it", 2)):
        seconds = sorted(float(output[column]) for output in outputs)
        print(f"{outputs[0][0]}: {name}: {statistics.median(seconds):.3f} s ({seconds[0]:.3f} to {seconds[-1]:.3f})")


if __name__ == "__main__":
    main()
