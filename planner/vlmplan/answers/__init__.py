"""What the commands answer: a file for each answer, with its JSON document, its text, and its page where it has one."""
