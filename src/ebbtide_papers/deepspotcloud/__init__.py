"""DeepSpotCloud: deep learning on GPU spot machines across regions."""
