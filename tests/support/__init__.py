"""What several test modules begin from: no test module imports another one."""
