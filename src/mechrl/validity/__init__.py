"""Is a circuit real?"""
