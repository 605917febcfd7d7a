"""Program -> machine code. One expression table and one skeleton per kernel kind and target."""
