"""The tables of Li, Zhang & He 2022, small: what is trained, how, what is read of it, how it is shown."""
