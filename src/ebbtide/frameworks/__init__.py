"""Ebbtide in the training frameworks that people use: each module imports its framework, and `ebbtide.trial`.

- `ebbtide.frameworks.lightning`: PyTorch Lightning.
- `ebbtide.frameworks.transformers`: the Trainer of Hugging Face, and so what is built on it (TRL, axolotl).
- `ebbtide.frameworks.accelerate`: a loop of one's own with Hugging Face Accelerate.
- `ebbtide.frameworks.keras`: Keras, with PyTorch beneath it.
"""
