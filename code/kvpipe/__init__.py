"""The modules of The KV-Pipe Handbook, one family per chapter."""
