"""The peers that have a server, beside Kedge's: how soon it answers, what it costs, what it loses."""
