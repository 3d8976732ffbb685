"""The coordinator: which windows run where, what hosts may take, and the ledgers."""
