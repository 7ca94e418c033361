"""`hpcsched doctor`: tries what hpcsched relies on, one line each, with a cure."""
