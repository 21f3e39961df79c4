"""Real or machine text: detectors, discrimination by energies, and what energies look at."""
