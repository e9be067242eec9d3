from include.cli import main

raise SystemExit(main())
