"""The annotation service: people and verifiers compare two answers, blind. Its own process, database and permissions."""
