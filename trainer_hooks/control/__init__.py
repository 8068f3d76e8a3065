"""What a running training is asked for (the files KILL, SAVE and PARK, a signal), the step at which all ranks obey, and
the wait of all ranks while the training is parked.

In: files of the state folder, signals of the process. Out: one answer for all ranks at a step's end, and at the end of
the wait.
"""
