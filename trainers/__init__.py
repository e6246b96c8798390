"""The learner of the draft: follows the replay store, trains, publishes behind a gate."""
