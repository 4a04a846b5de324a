"""What every task needs around its work: a folder of results that appears whole, and rows of a benchmark that are kept."""
