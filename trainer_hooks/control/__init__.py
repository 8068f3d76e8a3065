"""What a running training is asked for (the files KILL and SAVE, a signal), and the step at which all ranks obey."""
