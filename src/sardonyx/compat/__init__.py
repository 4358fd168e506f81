"""Drop-in modules: the names, signatures and result types of other packages, answered by Sardonyx."""
