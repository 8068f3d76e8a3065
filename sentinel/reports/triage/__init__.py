"""One page on which a run is understood: what broke, what led, what was done about it, and whether it helped.

past        what the page is made of, read once
decimation  a curve of a million readings as a few thousand of them, with every extreme
curves      the charts: what they show, of which attempts
moments     when each step was made
timeline    the verdict over the run
story       each incident, with its plan and what the plan changes
suspects    where to look first
document    all of it as JSON
page        the JSON, the drawing and its licence in one file
feed        what is new, for those who look on
server      the page, live, on this machine
"""
