"""What is proposed from estimates and searches: what a change buys, how a file fits, the way out where nothing does.

advice          each single change of the best plan, with what it saves or costs; single_changes: which there are
fixes           changes of another trainer's file with which it fits; data_fixes: those of its samples
way_out         the least changes on the same cards, and the cheapest other machine (other_machine), where nothing fits
own_setups      what the trainer of a configuration can train, which changes of its file are held to
comparison      variants of one setup; trainable: models that a card can train; confirmation: a plan that is rehearsed
searches        searches of changed requests that share what they can
"""
