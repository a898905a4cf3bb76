"""Integrations with training frameworks: each module imports its framework, and `ebbtide.trial`.

- `ebbtide.frameworks.lightning`: PyTorch Lightning.
- `ebbtide.frameworks.transformers`: Hugging Face's Trainer, and tools built on it (TRL, axolotl).
- `ebbtide.frameworks.accelerate`: a custom loop with Hugging Face Accelerate.
- `ebbtide.frameworks.keras`: Keras with the PyTorch backend.
"""
