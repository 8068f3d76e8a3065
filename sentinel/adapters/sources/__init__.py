"""What replay reads: the files and logs of all sorts of trainers, as the judge's columns."""
