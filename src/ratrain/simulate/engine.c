int ratrain_engine_version(void) { return 1; }
