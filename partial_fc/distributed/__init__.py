"""Launcher variables, collectives, consistency checks, heartbeat, rank status and watchdog of the ranks of a job."""
