"""What a running training is asked for (the files KILL and SAVE, a signal), and the step at which all ranks obey.

In: files of the state folder, signals of the process. Out: one answer for all ranks at a step's end.
"""
