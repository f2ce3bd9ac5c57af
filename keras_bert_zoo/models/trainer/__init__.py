"""What `fit`, `evaluate` and `predict` of a task do beyond Keras' own: batches, streams, steps, threads."""
