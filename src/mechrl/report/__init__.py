"""Tables and figures as files that people open: CSV, JSON, PNG, SVG and one HTML page that needs nothing else."""
