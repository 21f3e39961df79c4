"""What people read: plots, sections, the four files of every evaluation."""
