"""What people see of a run, and what it took beside what was planned."""
