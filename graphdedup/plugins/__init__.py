"""Entry points that engines load in each of their processes; off unless ``GRAPHDEDUP_INTERPOSE=1``. No CUDA is touched."""
