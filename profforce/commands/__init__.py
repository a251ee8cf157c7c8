"""The commands of the command line, one a file. Heavy imports wait inside them."""
