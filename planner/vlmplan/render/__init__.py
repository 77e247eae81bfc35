"""What people see in a terminal: tables, bars, one estimate, one recommendation."""
