"""What may be done with an operator: recognised, classified, proved, put into a better form."""
