"""Capabilities that most runs do without; `moray.config.extras` names them."""
