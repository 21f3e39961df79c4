"""`energylm study`: which model's completions do people prefer? Make a study, invite raters, serve it, report it."""
