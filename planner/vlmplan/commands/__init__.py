"""What each command does apart from its command line: from a request to its answer, and that as JSON, text and page"""
