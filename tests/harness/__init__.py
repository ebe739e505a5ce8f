"""One harness for all tests with real processes: it notes a history, which the audit checks."""
