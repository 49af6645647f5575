"""Rules on inputs."""
