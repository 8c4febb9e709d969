"""The judge of the KV-Pipe Handbook: graded exercises that run outside the learner's reach."""
