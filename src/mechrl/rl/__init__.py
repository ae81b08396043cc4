"""Circuit discovery as a Markov decision process, and the policy that learns it."""
