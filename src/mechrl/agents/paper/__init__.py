"""The paper's agent, and nothing else: a policy trained with PPO that prunes a candidate set until it stops."""
