"""What resumes: blocks and where they are done, locks, the artefact store."""
