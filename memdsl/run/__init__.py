"""Executions: pure functions of arrays, one head and one sequence each."""
