"""What a task does, step by step: submit once, take over, give up, end."""
