"""The paper's agent: a policy trained with PPO that prunes a candidate set until it stops."""
