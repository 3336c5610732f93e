"""Imported by Python itself in every process that a campaign starts with a planted defect: plants it, in that
process."""

import os

if os.environ.get("CAMPAIGN_PLANTED"):
    from tests.campaign.planting import defects

    defects.plant(os.environ["CAMPAIGN_PLANTED"])
